"""Consensus: one group of replicas for each range, agreeing on one log.

::

    consensus.py          a node's groups: one turn, one write set, one frame to each peer
    liveness.py           which nodes are heard
    group.py              one member of one group: propose, apply, the order of a turn
    inbox.py              what has arrived, and who deals with it
    proposals.py          every proposal ends, exactly once
    election.py           who leads
    transfer.py           leadership handed over on purpose
    replication.py        how entries travel, when they are committed, when a group is quiet
    membership.py         who is in a group, and how that changes
    changes.py            changes on their way into the log
    snapshot_sender.py    how a member that is far behind gets the state: the leader's side
    snapshot_receiver.py  the follower's side: spooled, then put in place in steps
    spool.py              where a snapshot waits until all of it is there
    journal.py            log, term and vote on the node's engine
    messages.py           what members say, and how it is written
    syncobj_core.py       pysyncobj: the only file that knows its private names

    state_machine.py  transport.py  snapshot.py     ports
    memory_transport.py                             a network in memory, for simulation

The rules are those of "In Search of an Understandable Consensus Algorithm (Extended Version)"
(Ongaro and Ousterhout, 2014), cited as *paper*, and of Ongaro's *dissertation*, "Consensus:
Bridging Theory and Practice" (2014). The tests say where pysyncobj departs from them.

Left out: reads (leases are the ranges' business), forwarding of proposals to the leader (callers
find it).
"""
