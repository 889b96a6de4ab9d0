"""Programs that follow a vendor's documented command line, for tests of provider profiles. What is behind
them is one machine's namespaces (lib.standins.box). An option or a word that the vendor's documentation
does not have is an error, as it would be there."""
