"""The commands of ``postroom``, one module a subject; `application` puts them together.

====================  ============================================================
`application`         the list of commands, and what becomes of errors
`options`             the options that commands share, and opening the store
`output`              bytes as text, as hexadecimal digits, as JSON lines
`values`              get, put, delete, increment, scan, watch, accounting
`mail`                send, peek, reap, bury, inboxes
`letters`             scheduled, cancel, dead-letters
`state`               status, remove-node, rebind-node
`serve`               serve
`cluster`             cluster
`pipeline`            pipeline run: a package, one module a job
`measure`             bench
`tour`                demo
====================  ============================================================
"""
