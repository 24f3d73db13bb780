"""The databases that applications get: those of the client, with the calls of the layers.

The client knows no layer, and a layer knows public calls only. Here, above both, they are put
together: a class inherits the calls of each layer, and then the calls of the client. ``open`` and
``connect`` are those of the server and the client. Their results become objects of these classes.

* ``asynchronous``, ``synchronous``: the two forms of the database, and of ``connect``;
* ``opening``: ``open``, apart from them since it brings the server.
"""
