"""The figures of a read-out: functions of the evidence, the numbers first and the drawing beside them."""
