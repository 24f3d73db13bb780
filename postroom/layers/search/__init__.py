"""Full-text search over documents, kept up to date by deferred updates.

This is the classic use of executable messages. A document has many words, and a transaction that
wrote all of them would be large and slow. The transaction that changes a document therefore changes
one record beside it. It *defers* a ``Put`` or a ``Delete`` for each posting that comes or goes;
they are carried out exactly once, soon after. ::

    index.put(tx, key, document)
        document ────────────────── in the transaction
        record: word → frequency, born ─ in the transaction (it is read, so changes have an order)
        postings (word, key, born) ──── deferred: put once, deleted once, never written again

    index.search("wine cellar")
        postings of each word ── merged ─▶ candidates ── records at the same timestamp ─▶ hits

**Why a late posting does no harm.** The key of a posting ends with the *generation* of the document
at which it was born, and no generation comes twice. A generation is the timestamp at which the
transaction has read the record, and transactions that change one record have one order. Thus each
posting has one ``Put`` and at most one ``Delete``. This is true in whatever order the updates of
several transactions are carried out: a posting that a record names exists, or its ``Put`` still
waits. A posting that no record names may be left over, but search asks the record, which does not
know it.

The files:

* ``layout``: keys and stored forms; ``definition``: an index, its state, words of documents;
* ``changes``: the rules: the writes of a change, and differences between an index and documents;
* ``matching``: queries, candidates, ranking; ``index``: the calls of an application;
* ``maintenance``: making, building and checking an index; ``sync_index``: the synchronous forms.

Left out: stemming, stop words, words of languages that are written without spaces.
"""
