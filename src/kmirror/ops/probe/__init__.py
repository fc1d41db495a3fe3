"""`check --probe`: what does this destination guarantee?"""
