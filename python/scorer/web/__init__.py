"""The platform's web server: server-rendered pages and the REST API.

`app.create_app` serves both for one `scorer.release.open.PlatformServices`. The package requires
scorer[platform]; the data plane does not import it.
"""
