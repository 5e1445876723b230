"""Other libraries that train private linear models, each in an interpreter of its own."""
