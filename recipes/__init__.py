"""Everything between raw data and a finished run: recipes, objectives, the trainer, stages, studies, the command."""
