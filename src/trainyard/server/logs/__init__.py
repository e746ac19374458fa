"""What jobs print: kept in files, shown as lines, searched, and with secrets masked."""
