"""The artifact: schema, catalog, reader, writer, validation, digests."""
