"""`check`: would it work?"""
