"""`report`: what is known of a mirror, as one page for people."""
