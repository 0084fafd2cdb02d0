"""The format of the tables that `scorer ship` writes, which the shipper and the readers share."""
