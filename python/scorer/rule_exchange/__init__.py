"""Exchange of rule sets with other decision engines: GoRules JDM and DMN decision tables."""
