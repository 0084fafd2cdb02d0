"""How a model comes to production: change requests, calendar, shadow, reports, gates, release, rollback.

One service layer (`scorer.release.service.Service`) over one database; pages, REST, the command line and
`scorer.sdk` are faces of it. Needs scorer[platform]; what answers shoppers imports none of it.
"""
