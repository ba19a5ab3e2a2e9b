"""Objects: files and addresses outside a job that a run may open, and folders of objects that sinks write.

In: a URI, and what the run allows; content with a name.
Out: bytes, or a refusal; objects, and manifests that say which of them count.
Imports: errors.
"""
