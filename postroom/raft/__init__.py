"""The consensus: one group of replicas for each range, agreeing on one log.

::

    consensus.py          a node's groups: one turn, one write set, one frame to each peer
    liveness.py           the nodes that are heard
    group.py              one member of one group: propose, apply, the order of a turn
    incoming_messages.py  messages that have arrived, each dealt with by its rules
    proposals.py          from the log to the state: append, apply, drop; each ends exactly once
    election.py           the choice of a leader
    transfer.py           leadership handed over on purpose
    replication.py        the way of entries, their commit, and quiet groups
    membership.py         the members of a group, and their changes
    changes.py            changes on their way into the log
    snapshot_sender.py    a snapshot for a member that is far behind: the leader's side
    snapshot_receiver.py  the follower's side: spooled, then put in place in steps
    journal.py            log, term and vote on the node's engine
    stored_log.py         the log's layout on the engine, and its reading
    messages.py           the messages of members, and their encoding
    intake.py             the frames that one turn takes in, and the number of their items
    outgoing_messages.py  the frames that one turn sends
    reach.py              terms and indices that no member can have reached
    syncobj_core.py       pysyncobj: the only file that knows its private names

    options.py                                      times and sizes
    state_machine.py  transport.py  snapshot.py     ports
    memory_transport.py                             a network in memory, for simulation

The rules are those of "In Search of an Understandable Consensus Algorithm (Extended Version)"
(Ongaro and Ousterhout, 2014), cited as *paper*. Other rules are those of Ongaro's *dissertation*,
"Consensus: Bridging Theory and Practice" (2014). The tests say where pysyncobj departs from them.

Left out: reads (the ranges have leases for them) and the forwarding of proposals to the leader
(callers find it).
"""
