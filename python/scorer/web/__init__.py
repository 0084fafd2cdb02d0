"""The platform in the browser: server-rendered pages, and the REST API beside them.

`app.create_app` puts both over one `scorer.release.open.PlatformServices`. Needs scorer[platform]; nothing
that answers shoppers imports it.
"""
