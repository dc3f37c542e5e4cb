"""What happened: records, the journal, the transcript, replay."""
