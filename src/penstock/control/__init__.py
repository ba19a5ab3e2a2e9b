"""Control: how control records take effect."""
