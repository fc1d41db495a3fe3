"""Compare two logs record by record, as applications see them."""
