"""`verify`: compare source and destination record by record."""
