"""The figures of a report: functions of the evidence that return numbers and a drawing."""
