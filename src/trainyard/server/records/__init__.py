"""What is stored, as frozen records with their enums: one file a noun. No SQL; store/ reads and writes them."""
