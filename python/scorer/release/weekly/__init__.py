"""Versions of a checkpoint compared over time, in a process beside the platform.

job         the files that the platform and the process exchange
child       the process
answering   the result as the service layer returns it
service     the operations
"""
