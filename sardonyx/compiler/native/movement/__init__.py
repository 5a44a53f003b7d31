"""Templates that move values without computing: copies, views, gather and scatter."""
