"""The commands of ``postroom``, one module a subject; `application` puts them together.

====================  ============================================================
`application`         the list of commands, and what becomes of errors
`options`             the options that commands share, and opening the store
`output`              keys and values, records and sizes as text
`values`              get, put, delete, increment, scan, watch, accounting, search
`mail`                send, peek, reap, bury, inboxes, scheduled, cancel, dead-letters
`queues`              queue; `queue_output` prints queues and their messages
`work`                worker
`state`               status, remove-node, rebind-node, forget-position
`access`              access, audit-log
`settings`            settings
`serve`, `gateway`    serve, gateway
`cluster`             cluster
`pipeline`, `load`    pipeline run: jobs; `spark` starts Spark for them
`measure`             bench
`tour`                demo
====================  ============================================================
"""
