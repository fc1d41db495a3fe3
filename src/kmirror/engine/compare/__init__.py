"""Compare two logs record by record, as consumers see them."""
