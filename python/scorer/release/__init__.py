"""The release platform: change requests, calendar, observation, reports, gates, releases and rollbacks.

`scorer.release.service.Service` is the service layer over one database. Pages, REST, the command line and
`scorer.sdk` are its clients. The package requires scorer[platform]; the data plane does not import it.
"""
