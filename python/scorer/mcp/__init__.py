"""The Model Context Protocol over the tools of agents: a server for both transports, and schemas of tools.

`scorer.release.agents.catalogue` defines the tools. Nothing here decides who may call them.
"""
