"""Speak as other tools do: Kafka's `kafka-mirrors`, the files and topics of MirrorMaker 2, cluster links."""
