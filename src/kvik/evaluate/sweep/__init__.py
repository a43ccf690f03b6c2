"""Running every unit of every task with every recipe: cells, where they are kept, who works."""
