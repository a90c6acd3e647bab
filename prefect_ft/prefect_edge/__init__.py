"""What Prefect sees and does: tasks with their retry handler, time limits, reports, a server where there is none."""
