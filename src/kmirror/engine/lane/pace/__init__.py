"""How much a lane fetches and sends, and over how many connections, by what was carried in which time. Pure."""
