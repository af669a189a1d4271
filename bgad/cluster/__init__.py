"""The jobs of one machine on a Ray cluster: scoring an archive, training many models, running many cells."""
