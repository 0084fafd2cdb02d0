"""The value of adoption (Delta CV), estimated in a process beside the platform.

job       the files that the platform and the process exchange
child     the process
service   the operations
"""
