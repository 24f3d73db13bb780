"""Full-text search over documents, kept up to date by deferred updates.

The classic use of executable messages: a document has many words, and writing all of them in its
own transaction would make that large and slow. So the transaction that changes a document changes
one record beside it, and *defers* a ``Put`` or a ``Delete`` for each posting that comes or goes;
they are carried out exactly once, soon after. ::

    index.put(tx, key, document)
        document ────────────────── in the transaction
        record: word → frequency, born ─ in the transaction (it is read, so changes have an order)
        postings (word, key, born) ──── deferred: put once, deleted once, never written again

    index.search("wine cellar")
        postings of each word ── merged ─▶ candidates ── records at the same timestamp ─▶ hits

**Why a posting that is late never wins.** The key of a posting ends with the *generation* of the
document at which it was born, and that never comes twice: a generation is the timestamp at which
the transaction has read the record, and transactions that change one record have one order. So each
posting has one ``Put`` and at most one ``Delete``. In whatever order those of several transactions
are carried out, a posting that a record names is there, or its ``Put`` still waits; a posting that
no record names may be left over, but search asks the record, which does not know it.

Files: `words` (text to words), `query`, `layout` (keys and stored forms), `definition` (an index
and its state), `changes` (what a change writes: the rules), `ranking`, `matching` (candidates),
`index` (what an application calls), `sync_index`, `of_database`, `building`, and `checking` (what
must be there, compared with what is).

Left out: stemming, stop words, words of languages that are written without spaces.
"""
