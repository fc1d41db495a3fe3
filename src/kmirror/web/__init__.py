"""What browsers and scrapers are shown: what `run --http` answers, and the page of `report`."""
