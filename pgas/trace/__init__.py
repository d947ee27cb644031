"""What jobs with PGAS_TRACE=timeline did: reads the trace files of all PEs, aligns their clocks, and shows the timeline (docs/trace.md)."""
