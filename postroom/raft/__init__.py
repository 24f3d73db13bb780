"""The consensus: one group of replicas for each range, agreeing on one log.

::

    consensus.py          a node's groups: one turn, one write set, one frame to each peer
    group.py              one member of one group: propose, apply, the order of a turn
    incoming_messages.py  messages that have arrived, each dealt with by its rules
    proposals.py          from the log to the state: append, apply, drop; each ends exactly once;
                          also changes of members
    election.py           the choice of a leader
    transfer.py           leadership handed over on purpose
    replication.py        the way of entries, their commit, and quiet groups
    membership.py         the members of a group, before and after a change
    snapshots.py          a snapshot for a member that is far behind: sent, spooled, put in place
    journal.py            log, term and vote on the node's engine
    stored_log.py         the log's layout on the engine, and its reading
    tombstones.py         the record that a destroyed replica leaves
    messages.py           the messages of members, their encoding, and which ones are refused
    frames.py             the frames that one turn takes in and sends, and the nodes that are heard
    syncobj_core.py       pysyncobj: the only file that knows its private names

    interface.py          ports: state machine, transport (also in memory); options

The rules are those of "In Search of an Understandable Consensus Algorithm (Extended Version)"
(Ongaro and Ousterhout, 2014), cited as *paper*. Other rules are those of Ongaro's *dissertation*,
"Consensus: Bridging Theory and Practice" (2014). The tests say where pysyncobj departs from them.

Left out: reads (the ranges have leases for them) and the forwarding of proposals to the leader
(callers find it).
"""
