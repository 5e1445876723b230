"""The databases of a home: made and upgraded by one process at a time, and put right where the home
was moved.
"""
