"""REST: what programs and the dashboard ask of the job manager over HTTP, and who may."""
