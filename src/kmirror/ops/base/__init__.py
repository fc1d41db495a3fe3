"""What several verbs are built on."""
