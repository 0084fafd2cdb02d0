"""The process that brings events from Kafka to the state of features: to servers, or to Redis.

`settings` are those of the process, `kafka` reads a topic, `targets` take the events, `worker` connects one
target with the topic, and `process` runs the workers.
"""
