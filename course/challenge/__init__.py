"""A number to beat: one trace, one fleet, and your scheduler, router and admission in at most 200 lines."""
