"""Lost time and efficiency: waterfall, POP factors, goodput, causes and bottlenecks."""
