"""The index over all records: a database beside the files, made anew from them whenever it has to be."""
