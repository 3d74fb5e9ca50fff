"""From finished runs to what people read: tables, figures, published numbers beside ours."""
