"""Programs and Graphs as text: for people, for golden tests, for fingerprints."""
