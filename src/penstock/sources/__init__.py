"""Sources: where records enter."""
