"""The figures of a report: functions of the evidence, the numbers first and the drawing beside them."""
